"""Fakes and test stages that several test folders use."""
