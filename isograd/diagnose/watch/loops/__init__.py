"""The watch in other loops: callbacks of the Trainer and of Lightning, going back during a run, trying again."""
