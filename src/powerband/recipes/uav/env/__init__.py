"""Simulated missions: teams of UAVs map a hidden binary field, thousands of missions at a time on one device."""
