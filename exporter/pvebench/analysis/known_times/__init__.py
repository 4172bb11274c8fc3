"""What an event did: shifts at a known time, judged against placebos, alone and in groups."""
