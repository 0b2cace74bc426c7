"""Compares central with distributed matching, as the paper on the DHT overlay does."""
