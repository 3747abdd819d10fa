"""Using trained weights, whatever the task: prediction of image files, and export."""
