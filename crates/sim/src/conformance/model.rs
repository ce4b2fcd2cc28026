//! The expected bytes of a device.

/// The expected content of a device; `None` where it is undefined.
#[derive(Clone, Debug)]
pub struct ByteModel {
    bytes: Vec<Option<u8>>,
}

impl ByteModel {
    /// A device of `size` zeros.
    pub fn new(size: u64) -> ByteModel {
        ByteModel { bytes: vec![Some(0); size as usize] }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Applies a write.
    pub fn write(&mut self, offset: u64, data: impl Iterator<Item = u8>) {
        let written = &mut self.bytes[offset as usize..];
        written.iter_mut().zip(data).for_each(|(known, byte)| *known = Some(byte));
    }

    /// Applies a discard.
    pub fn discard(&mut self, offset: u64, len: u64) {
        self.bytes[offset as usize..(offset + len) as usize].fill(None);
    }

    /// Applies growth, by zeros.
    pub fn grow(&mut self, size: u64) {
        self.bytes.resize(size as usize, Some(0));
    }

    /// Compares bytes that were read at `offset`.
    ///
    /// # Panics
    /// When one differs.
    pub fn check(&self, offset: u64, read: &[u8]) {
        let expected = &self.bytes[offset as usize..offset as usize + read.len()];
        let mut both = expected.iter().zip(read);
        let differs = both.position(|(expected, read)| expected.is_some_and(|e| e != *read));
        assert_eq!(differs, None, "first wrong byte of {} read at {offset}", read.len());
    }
}
