"""What training minimises; pixels labelled 255 count nowhere."""
