"""The communication engine: units of gradients, what they look like on the wire, when each part is sent, and who waits for it."""
