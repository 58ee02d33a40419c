"""Tables, figures and the page, from the files of runs alone. Imports no torch."""
