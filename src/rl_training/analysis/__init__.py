"""What runs came to: statistics over seeds, what run directories say, and the report page."""
