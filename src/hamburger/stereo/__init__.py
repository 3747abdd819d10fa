"""Stereo matching: the disparity of two rectified images."""
