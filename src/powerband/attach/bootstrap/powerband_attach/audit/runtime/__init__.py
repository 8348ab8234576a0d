"""Runtime: records what a run computes, such as environment steps, optimiser steps and gradients."""
