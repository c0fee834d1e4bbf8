"""What a running worker says about itself."""
