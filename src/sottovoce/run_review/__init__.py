"""What a finished or a working run says of itself: record, report, live view."""
