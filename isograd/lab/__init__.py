"""What trains and compares: data, training, evaluation, studies, reports, recipes, statistics."""
