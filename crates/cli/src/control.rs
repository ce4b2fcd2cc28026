//! The control socket of a volume that is in use: how one process asks another to act on it.
//!
//! It is a Unix socket with mode 0600 in the volume's folder. A frame is a length (u32, little endian) and
//! that many bytes of JSON. The client sends one `Request`; the server sends any number of `Frame::Step`s
//! and then one `Frame::Done` or `Frame::Failed`. The server finishes the request even if the client
//! disconnects.
//!
//! If this user cannot write to the volume's folder, for example on a read-only medium, the socket is in one
//! of this user's directories.

pub(crate) mod client;
pub(crate) mod frame;
pub(crate) mod socket;

pub(crate) use self::client::Client;
