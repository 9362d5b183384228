"""A trained agent as a web service: observations in, actions out, requests that come together in one batch."""
