"""What people read: verdicts as text, and the progress of long verbs."""
