"""Teams of UAVs that map a hidden binary field, thousands of missions at once on the training device."""
