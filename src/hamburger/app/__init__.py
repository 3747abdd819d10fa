"""`ham app`: a page in the browser that shows what a network computes for a photo."""
