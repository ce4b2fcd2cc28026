//! The first bytes of both sides: eight bytes of magic and a version (u32, little endian).

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Length of a hello in bytes.
pub const LEN: usize = 12;

/// A protocol and its version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Names the protocol.
    pub magic: [u8; 8],
    /// The version of its messages.
    pub version: u32,
}

/// Why a peer's hello is refused. The connection ends.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HelloError {
    /// The peer speaks another protocol.
    #[error("the peer does not speak this protocol")]
    Foreign,
    /// The peer speaks another version.
    #[error("the peer speaks version {theirs} of the protocol, and this process version {own}")]
    Version {
        /// The peer's.
        theirs: u32,
        /// This process's.
        own: u32,
    },
}

impl Hello {
    /// The bytes of a hello.
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&self.magic);
        bytes[8..].copy_from_slice(&self.version.to_le_bytes());
        bytes
    }

    /// Checks a peer's hello against this one.
    ///
    /// # Errors
    /// [`HelloError`].
    pub fn check(&self, bytes: &[u8; LEN]) -> Result<(), HelloError> {
        let [magic @ .., a, b, c, d] = bytes;
        let theirs = u32::from_le_bytes([*a, *b, *c, *d]);
        match (*magic == self.magic, theirs == self.version) {
            (false, _) => Err(HelloError::Foreign),
            (true, true) => Ok(()),
            (true, false) => Err(HelloError::Version { theirs, own: self.version }),
        }
    }

    /// Sends this hello, and receives and checks the peer's. A peer with another version gets this hello
    /// nevertheless, so that it can say what is wrong.
    ///
    /// # Errors
    /// [`HelloError`] as an error of I/O, and errors of the connection.
    pub async fn exchange(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> io::Result<()> {
        stream.write_all(&self.encode()).await?;
        stream.flush().await?;
        let mut theirs = [0; LEN];
        stream.read_exact(&mut theirs).await?;
        self.check(&theirs).map_err(io::Error::other)
    }
}
