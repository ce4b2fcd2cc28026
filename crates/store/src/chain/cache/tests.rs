//! The cache against naive references and on devices.
