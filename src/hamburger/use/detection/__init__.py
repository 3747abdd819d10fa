"""Objects in a person's photographs and in a report."""
