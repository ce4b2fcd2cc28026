//! The NBD protocol as bytes: constants, layouts and decoders, without I/O.
//!
//! All integers are big endian. Every decoder takes bytes that a peer chose, so none panics.

use bytes::{BufMut, BytesMut};

/// The server's first eight bytes, `NBDMAGIC`.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Newstyle marker of the server and magic of every option, `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Magic of an option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes in an option header.
pub const OPTION_HEADER_LEN: usize = 16;
/// Bytes in a request header.
pub const REQUEST_LEN: usize = 28;
/// Longest export name in bytes.
pub const MAX_NAME: usize = 4096;
/// Longest option payload in bytes that is looked at.
pub const MAX_OPTION: u32 = 64 * 1024;
/// Longest payload of a read or write in bytes.
pub const MAX_PAYLOAD: u32 = 32 * 1024 * 1024;
/// The identifier of `base:allocation` once a client has selected it.
pub const ALLOCATION_CONTEXT_ID: u32 = 1;
/// The one metadata context that is offered.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";

/// Bits in the server's handshake flags and the client's answer; the two have the same values.
pub mod handshake_flag {
    /// Fixed newstyle.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No padding after `NBD_OPT_EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Bits in the transmission flags of an export.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Flush is understood.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Force unit access is understood.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Trim is understood.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Write zeroes is understood.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Unfragmented reads are understood.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers all of them.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// Cache is understood.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// Fast zeroing is understood.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Bits in the flags of a request.
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Zeroed space stays allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One content chunk at most.
    pub const DF: u16 = 1 << 2;
    /// One extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail unless zeroing is faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Option codes of the handshake.
pub mod option {
    /// Choose an export without a reply on failure.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Switch to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and serve it.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Reply codes of the handshake.
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export's name.
    pub const SERVER: u32 = 2;
    /// A piece of information about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is unknown or not offered.
    pub const ERR_UNSUP: u32 = (1 << 31) | 1;
    /// The option's payload is invalid.
    pub const ERR_INVALID: u32 = (1 << 31) | 3;
    /// TLS comes first.
    pub const ERR_TLS_REQD: u32 = (1 << 31) | 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) | 6;
    /// The server is going away.
    pub const ERR_SHUTDOWN: u32 = (1 << 31) | 7;
    /// The option's payload is too long.
    pub const ERR_TOO_BIG: u32 = (1 << 31) | 9;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum and preferred block and the longest payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Kinds of structured reply chunks.
pub mod chunk {
    /// Nothing; ends a reply.
    pub const NONE: u16 = 0;
    /// Bytes at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error with a text.
    pub const ERROR: u16 = (1 << 15) | 1;
    /// Flag: the last chunk of a reply.
    pub const FLAG_DONE: u16 = 1 << 0;
}

/// Extent flag of `base:allocation`: nothing is stored.
pub const STATE_HOLE: u32 = 1 << 0;
/// Extent flag of `base:allocation`: reads as zeros.
pub const STATE_ZERO: u32 = 1 << 1;

/// The error numbers that the protocol knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Operation not permitted: the export is read-only.
    Perm = 1,
    /// Input or output error.
    Io = 5,
    /// Invalid argument.
    Inval = 22,
    /// No space left.
    NoSpace = 28,
    /// Value too large.
    Overflow = 75,
    /// Operation not supported.
    NotSup = 95,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read bytes.
    Read,
    /// Write the payload.
    Write,
    /// End the session.
    Disconnect,
    /// Make completed writes durable.
    Flush,
    /// Discard a range.
    Trim,
    /// Read ahead.
    Cache,
    /// Make a range read as zeros.
    WriteZeroes,
    /// Tell what is stored in a range.
    BlockStatus,
    /// Anything else.
    Unknown(u16),
}

impl Command {
    /// The number of kinds, for tables indexed by [`Command::index`].
    pub const COUNT: usize = 9;

    /// The names of all kinds, in the order of [`Command::index`].
    pub const NAMES: [&'static str; Command::COUNT] = [
        "read",
        "write",
        "disconnect",
        "flush",
        "trim",
        "cache",
        "write_zeroes",
        "block_status",
        "unknown",
    ];

    fn from_wire(code: u16) -> Command {
        match code {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Unknown(other),
        }
    }

    /// The command's place in tables.
    pub fn index(self) -> usize {
        match self {
            Command::Read => 0,
            Command::Write => 1,
            Command::Disconnect => 2,
            Command::Flush => 3,
            Command::Trim => 4,
            Command::Cache => 5,
            Command::WriteZeroes => 6,
            Command::BlockStatus => 7,
            Command::Unknown(_) => 8,
        }
    }

    /// The command's name in metrics.
    pub fn name(self) -> &'static str {
        Command::NAMES[self.index()]
    }

    /// Whether the command changes the export.
    pub fn is_writing(self) -> bool {
        matches!(self, Command::Write | Command::WriteZeroes | Command::Trim)
    }

    /// The flags that the command accepts. FUA is always valid; it has no effect on a command that does not
    /// write.
    pub fn allowed_flags(self) -> u16 {
        use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
        match self {
            Command::Read => FUA | DF,
            Command::WriteZeroes => FUA | NO_HOLE | FAST_ZERO,
            Command::BlockStatus => FUA | REQ_ONE,
            _ => FUA,
        }
    }
}

/// A request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// [`command_flag`] bits.
    pub flags: u16,
    /// What to do.
    pub command: Command,
    /// The client's name for the request, echoed in every reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// Why a peer's bytes are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A magic number is wrong: the stream is out of step and cannot be used further.
    #[error("wrong magic {0:#x}: the peer does not speak NBD, or the stream is out of step")]
    Magic(u64),
    /// A payload is shorter or longer than its length fields say.
    #[error("malformed payload: a length does not match the bytes that follow")]
    Length,
    /// A name is longer than [`MAX_NAME`].
    #[error("name longer than {MAX_NAME} bytes")]
    NameLength,
    /// A name is not UTF-8.
    #[error("name is not UTF-8")]
    NameEncoding,
    /// A flag that was not offered.
    #[error("unknown client flags {0:#x}")]
    Flags(u32),
}

/// A cursor over a peer's bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], ProtocolError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(ProtocolError::Length)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(ProtocolError::Length)?;
        self.0 = tail;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, ProtocolError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.array().map(u64::from_be_bytes)
    }

    fn string(&mut self) -> Result<String, ProtocolError> {
        let len = self.u32()?;
        let len = usize::try_from(len).map_err(|_| ProtocolError::Length)?;
        decode_name(self.take(len)?)
    }

    fn end(self) -> Result<(), ProtocolError> {
        if self.0.is_empty() { Ok(()) } else { Err(ProtocolError::Length) }
    }
}

/// Decodes a name of at most [`MAX_NAME`] bytes of UTF-8.
pub fn decode_name(bytes: &[u8]) -> Result<String, ProtocolError> {
    if bytes.len() > MAX_NAME {
        return Err(ProtocolError::NameLength);
    }
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| ProtocolError::NameEncoding)
}

/// Decodes the client's handshake flags; returns them when all were offered.
pub fn decode_client_flags(bytes: [u8; 4]) -> Result<u16, ProtocolError> {
    let flags = u32::from_be_bytes(bytes);
    let offered = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    match u16::try_from(flags) {
        Ok(known) if known & !offered == 0 => Ok(known),
        _ => Err(ProtocolError::Flags(flags)),
    }
}

/// An option header: the option's code and the length of its payload in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// [`option`] code.
    pub code: u32,
    /// Payload in bytes.
    pub len: u32,
}

impl OptionHeader {
    /// Decodes a header.
    pub fn decode(bytes: &[u8; OPTION_HEADER_LEN]) -> Result<OptionHeader, ProtocolError> {
        let mut reader = Reader(bytes);
        match reader.u64()? {
            OPTION_MAGIC => Ok(OptionHeader { code: reader.u32()?, len: reader.u32()? }),
            magic => Err(ProtocolError::Magic(magic)),
        }
    }
}

/// The payload of `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportRequest {
    /// The export's name, empty for the default.
    pub name: String,
    /// The [`info`] kinds asked for.
    pub infos: Vec<u16>,
}

impl ExportRequest {
    /// Decodes the payload.
    pub fn decode(payload: &[u8]) -> Result<ExportRequest, ProtocolError> {
        let mut reader = Reader(payload);
        let name = reader.string()?;
        let count = reader.u16()?;
        let infos = (0..count).map(|_| reader.u16()).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(ExportRequest { name, infos })
    }
}

/// The payload of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextRequest {
    /// The export's name, empty for the default.
    pub name: String,
    /// Queries, each a namespace, a colon and a leaf name.
    pub queries: Vec<String>,
}

impl ContextRequest {
    /// Decodes the payload.
    pub fn decode(payload: &[u8]) -> Result<ContextRequest, ProtocolError> {
        let mut reader = Reader(payload);
        let name = reader.string()?;
        let count = reader.u32()?;
        // A query takes four bytes at least; the count alone must not size anything.
        let queries = (0..count).map(|_| reader.string()).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(ContextRequest { name, queries })
    }

    /// Whether the request names `base:allocation`; `listing` also accepts wildcards.
    pub fn matches_allocation(&self, listing: bool) -> bool {
        let wildcard = |query: &String| listing && query == "base:";
        (listing && self.queries.is_empty())
            || self.queries.iter().any(|query| query == ALLOCATION_CONTEXT || wildcard(query))
    }
}

impl Request {
    /// Decodes a request header.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Request, ProtocolError> {
        let mut reader = Reader(bytes);
        let magic = reader.u32()?;
        if magic != REQUEST_MAGIC {
            return Err(ProtocolError::Magic(u64::from(magic)));
        }
        let flags = reader.u16()?;
        let command = Command::from_wire(reader.u16()?);
        let cookie = reader.u64()?;
        Ok(Request { flags, command, cookie, offset: reader.u64()?, len: reader.u32()? })
    }

    /// Bytes of payload that follow the header.
    pub fn payload_len(&self) -> u32 {
        if self.command == Command::Write { self.len } else { 0 }
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The first byte after the range, `None` when it overflows.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.len))
    }
}

/// The conditions that a request must meet to reach a volume.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The export's size in bytes.
    pub size: u64,
    /// Offsets and lengths are multiples of this.
    pub min_block: u32,
    /// The unit in bytes that zeroing handles without touching contents.
    pub preferred_block: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether the client negotiated structured replies.
    pub structured: bool,
    /// Whether the client selected `base:allocation`.
    pub allocation: bool,
}

impl Limits {
    /// Checks a request.
    ///
    /// # Errors
    /// The error number for the reply, and a text with the reason.
    pub fn check(&self, request: &Request) -> Result<(), (Errno, &'static str)> {
        let command = request.command;
        if let Command::Unknown(_) = command {
            return Err((Errno::Inval, "unknown command"));
        }
        if request.flags & !command.allowed_flags() != 0 {
            return Err((Errno::Inval, "unknown or misplaced command flags"));
        }
        if request.has(command_flag::DF) && !self.structured {
            return Err((Errno::Inval, "DF needs structured replies"));
        }
        if command == Command::BlockStatus && !self.allocation {
            return Err((Errno::Inval, "no metadata context was selected"));
        }
        if command.is_writing() && self.read_only {
            return Err((Errno::Perm, "the export is read-only"));
        }
        match command {
            Command::Flush | Command::Disconnect if request.offset != 0 || request.len != 0 => {
                Err((Errno::Inval, "offset and length must be zero"))
            }
            Command::Flush | Command::Disconnect => Ok(()),
            _ => self.check_range(request),
        }
    }

    fn check_range(&self, request: &Request) -> Result<(), (Errno, &'static str)> {
        let command = request.command;
        if request.len == 0 {
            return Err((Errno::Inval, "the length is zero"));
        }
        if matches!(command, Command::Read | Command::Write) && request.len > MAX_PAYLOAD {
            return Err((Errno::Inval, "longer than the largest payload, 32 MiB"));
        }
        if request.end().is_none_or(|end| end > self.size) {
            let full = matches!(command, Command::Write | Command::WriteZeroes);
            let errno = if full { Errno::NoSpace } else { Errno::Inval };
            return Err((errno, "beyond the end of the export"));
        }
        if !self.is_aligned(request, self.min_block) {
            return Err((Errno::Inval, "not aligned to the smallest block"));
        }
        // Whole blocks are unmapped, which costs no write. Anything else writes zeros.
        let fast =
            !request.has(command_flag::NO_HOLE) && self.is_aligned(request, self.preferred_block);
        if request.has(command_flag::FAST_ZERO) && !fast {
            return Err((Errno::NotSup, "zeroing this range is no faster than writing"));
        }
        Ok(())
    }

    fn is_aligned(&self, request: &Request, block: u32) -> bool {
        request.len.is_multiple_of(block) && request.offset.is_multiple_of(u64::from(block))
    }
}

/// Appends an option reply with a payload.
///
/// Payloads are made by the server and far below 4 GiB.
pub fn put_option_reply(out: &mut BytesMut, option: u32, kind: u32, payload: &[u8]) {
    out.put_u64(OPTION_REPLY_MAGIC);
    out.put_u32(option);
    out.put_u32(kind);
    out.put_u32(payload.len() as u32);
    out.put_slice(payload);
}

/// Appends a simple reply; `errno` `None` means success.
pub fn put_simple_reply(out: &mut BytesMut, cookie: u64, errno: Option<Errno>) {
    out.put_u32(SIMPLE_REPLY_MAGIC);
    out.put_u32(errno.map_or(0, |errno| errno as u32));
    out.put_u64(cookie);
}

/// Appends the header of a structured reply chunk with `len` bytes of payload.
pub fn put_chunk(out: &mut BytesMut, cookie: u64, done: bool, kind: u16, len: u32) {
    out.put_u32(STRUCTURED_REPLY_MAGIC);
    out.put_u16(if done { chunk::FLAG_DONE } else { 0 });
    out.put_u16(kind);
    out.put_u64(cookie);
    out.put_u32(len);
}

/// Appends a last chunk that carries an error and a text.
pub fn put_error_chunk(out: &mut BytesMut, cookie: u64, errno: Errno, text: &str) {
    // Strings on the wire are bounded as names are.
    let mut len = text.len().min(MAX_NAME);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    put_chunk(out, cookie, true, chunk::ERROR, 6 + len as u32);
    out.put_u32(errno as u32);
    out.put_u16(len as u16);
    out.put_slice(&text.as_bytes()[..len]);
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
