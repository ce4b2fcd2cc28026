use super::*;
use proptest::prelude::*;

fn limits() -> Limits {
    Limits {
        size: 1 << 20,
        min_block: 512,
        preferred_block: 4096,
        read_only: false,
        structured: true,
        allocation: true,
    }
}

fn request(command: Command, offset: u64, len: u32, flags: u16) -> Request {
    Request { flags, command, cookie: 7, offset, len }
}

fn errno(limits: Limits, request: Request) -> Option<Errno> {
    limits.check(&request).err().map(|(errno, _)| errno)
}

#[test]
fn a_request_has_the_published_layout() {
    let bytes = [
        0x25, 0x60, 0x95, 0x13, 0x00, 0x01, 0x00, 0x01, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0,
        0x10, 0, 0, 0, 0x02, 0,
    ];
    let decoded = Request::decode(&bytes).unwrap();
    let expected = Request {
        flags: command_flag::FUA,
        command: Command::Write,
        cookie: 0x0102_0304_0506_0708,
        offset: 4096,
        len: 512,
    };
    assert_eq!(decoded, expected);
    assert_eq!(decoded.payload_len(), 512);
}

#[test]
fn beyond_the_end_is_enospc_for_writes_and_einval_otherwise() {
    for (command, expected) in [
        (Command::Read, Errno::Inval),
        (Command::Write, Errno::NoSpace),
        (Command::WriteZeroes, Errno::NoSpace),
        (Command::Trim, Errno::Inval),
        (Command::Cache, Errno::Inval),
        (Command::BlockStatus, Errno::Inval),
    ] {
        assert_eq!(errno(limits(), request(command, (1 << 20) - 512, 512, 0)), None);
        assert_eq!(errno(limits(), request(command, (1 << 20) - 512, 1024, 0)), Some(expected));
        let overflowing = request(command, u64::MAX - 511, 512, 0);
        assert_eq!(errno(limits(), overflowing), Some(expected));
    }
}

#[test]
fn flags_are_accepted_only_where_they_belong() {
    use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
    let accepted = [
        (Command::Read, FUA | DF),
        (Command::Write, FUA),
        (Command::Flush, FUA),
        (Command::Trim, FUA),
        (Command::Cache, FUA),
        (Command::WriteZeroes, FUA | NO_HOLE | FAST_ZERO),
        (Command::BlockStatus, FUA | REQ_ONE),
    ];
    for (command, allowed) in accepted {
        let len = if command == Command::Flush { 0 } else { 4096 };
        for bit in 0..16 {
            let refused = errno(limits(), request(command, 0, len, 1 << bit)) == Some(Errno::Inval);
            assert_eq!(refused, allowed & (1 << bit) == 0, "{command:?} bit {bit}");
        }
    }
}

#[test]
fn fast_zeroing_is_refused_where_it_would_write() {
    use command_flag::{FAST_ZERO, NO_HOLE};
    let zero =
        |offset, len, flags| errno(limits(), request(Command::WriteZeroes, offset, len, flags));
    assert_eq!(zero(0, 8192, FAST_ZERO), None);
    assert_eq!(zero(512, 8192, FAST_ZERO), Some(Errno::NotSup));
    assert_eq!(zero(0, 512, FAST_ZERO), Some(Errno::NotSup));
    assert_eq!(zero(0, 8192, FAST_ZERO | NO_HOLE), Some(Errno::NotSup));
    assert_eq!(zero(512, 512, NO_HOLE), None);
}

#[test]
fn a_read_only_export_refuses_every_writing_command() {
    let limits = Limits { read_only: true, ..limits() };
    for command in [Command::Write, Command::WriteZeroes, Command::Trim] {
        assert_eq!(errno(limits, request(command, 0, 512, 0)), Some(Errno::Perm));
    }
    assert_eq!(errno(limits, request(Command::Read, 0, 512, 0)), None);
    assert_eq!(errno(limits, request(Command::Flush, 0, 0, 0)), None);
}

#[test]
fn a_long_error_text_is_cut_at_a_character() {
    let mut out = BytesMut::new();
    put_error_chunk(&mut out, 1, Errno::Io, &"é".repeat(4000));
    assert_eq!(out.len(), 20 + 6 + MAX_NAME);
    let text = format!("x{}", "é".repeat(4000));
    out.clear();
    put_error_chunk(&mut out, 1, Errno::Io, &text);
    assert_eq!(out.len(), 20 + 6 + MAX_NAME - 1);
    assert!(std::str::from_utf8(&out[26..]).is_ok());
}

#[test]
fn a_query_count_without_queries_is_refused_without_allocating() {
    let mut payload = vec![0, 0, 0, 0];
    payload.extend_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(ContextRequest::decode(&payload), Err(ProtocolError::Length));
}

proptest! {
    #[test]
    fn decoders_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        let _ = ExportRequest::decode(&bytes);
        let _ = ContextRequest::decode(&bytes);
        let _ = decode_name(&bytes);
        if let Some(header) = bytes.first_chunk() {
            let _ = OptionHeader::decode(header);
        }
        if let Some(header) = bytes.first_chunk() {
            let _ = Request::decode(header);
        }
    }

    #[test]
    fn an_accepted_request_lies_inside_the_export(
        flags in 0u16..64, code in 0u16..10, offset in any::<u64>(), len in any::<u32>(),
        near in any::<bool>(),
    ) {
        let (offset, len) = if near { (offset % (2 << 20), len % 70_000) } else { (offset, len) };
        let request = request(Command::from_wire(code), offset, len, flags);
        if limits().check(&request).is_ok() {
            prop_assert!(request.end().is_some_and(|end| end <= limits().size));
            prop_assert!(offset % 512 == 0 && len % 512 == 0);
        }
    }

    #[test]
    fn an_export_request_round_trips(name in "[a-zé/]{0,40}", infos in proptest::collection::vec(any::<u16>(), 0..5)) {
        let mut payload = (name.len() as u32).to_be_bytes().to_vec();
        payload.extend_from_slice(name.as_bytes());
        payload.extend_from_slice(&(infos.len() as u16).to_be_bytes());
        infos.iter().for_each(|info| payload.extend_from_slice(&info.to_be_bytes()));
        prop_assert_eq!(ExportRequest::decode(&payload), Ok(ExportRequest { name, infos }));
        payload.push(0);
        prop_assert_eq!(ExportRequest::decode(&payload), Err(ProtocolError::Length));
    }
}
