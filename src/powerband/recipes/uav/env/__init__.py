"""Simulated missions: simulates teams of UAVs that map a hidden binary field, thousands at a time on one device."""
