//! Simulation of policies over traces.
