"""What the four papers claim: their items run again, their claims measured, models of their own code in."""
