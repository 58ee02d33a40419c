"""What items measure beside the losses of their runs. In files of their own, since a changed file is measured anew."""
