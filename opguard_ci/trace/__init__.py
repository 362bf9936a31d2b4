"""What a run left behind: the model of a trace, and how it is written, read, digested and queried."""
