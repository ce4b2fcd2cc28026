//! The tail cache: no read should reach the drive that takes the writes (Gecko, 3.1.2).
