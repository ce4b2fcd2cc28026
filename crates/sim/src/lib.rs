//! Simulated disks in virtual time, crashes, faults and reference models for Thalweg.
