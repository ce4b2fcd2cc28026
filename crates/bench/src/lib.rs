//! Workloads, figures and plots for Thalweg.
