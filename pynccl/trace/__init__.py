"""The ranks' flight records side by side: where they part, in words, events and a picture."""
