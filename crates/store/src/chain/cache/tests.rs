//! The cache against a naive reference, and on devices that stall and fail.

mod behaviour;
mod model;
