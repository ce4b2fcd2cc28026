//! Peers that send invalid bytes.

use std::time::Duration;

use bytes::BytesMut;
use proptest::prelude::*;
use thalweg_env::Env;
use thalweg_ipc::protocol::{self, Answer, MAX_REQUEST_PAYLOAD, Request};
use thalweg_ipc::{Config, Connection, SOCKET, socket};
use thalweg_net::frame::FrameError;
use thalweg_store::block::{BLOCK_SIZE, Class, EpochVersion, Lba};
use thalweg_store::txn::{Begin, Durability, Handle, Options, Transact, TxnError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::rig::{BLOCKS, Rig, block};

const BEGIN: Request = Request::Begin { txn: 1, begin: Begin::STRICT };
const COMMIT: Request = Request::Commit { txn: 1, durability: Durability::Synced };

/// A connection that sends `bytes` ends with its transactions, and other connections go on.
async fn ends(rig: &Rig, bytes: &[u8]) {
    let mut raw = rig.raw().await;
    raw.send(1, &BEGIN, &[]).await;
    assert!(matches!(raw.answer().await, Some((1, Answer::Begun { .. }))));
    raw.send(0, &Request::Write { txn: 1, lba: 5, class: Class::Data }, &block(5)).await;
    raw.stream.write_all(bytes).await.unwrap();
    assert_eq!(raw.answer().await, None);
    rig.wait_for_running(0).await;
    assert_eq!(rig.stored(5).await, 0);
    let other = rig.connect().await.begin(Begin::STRICT).await.unwrap();
    other.read(Lba(0)).await.unwrap();
    other.abort().await;
}

fn frame(id: u64, request: &Request, payload: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    protocol::encode(id, request, payload.len(), &mut frame).unwrap();
    frame.extend_from_slice(payload);
    frame.to_vec()
}

#[tokio::test]
async fn garbage_ends_the_connection_that_sent_it() {
    let rig = Rig::new();
    let write = Request::Write { txn: 1, lba: 0, class: Class::Data };
    // A length below the minimum.
    ends(&rig, &[0xff; 64]).await;
    ends(&rig, &[0; 64]).await;
    // A message longer than its frame, and a payload above the maximum.
    ends(&rig, &[4, 0, 0, 0, 9, 0, 1, 2]).await;
    ends(&rig, &frame(0, &write, &vec![0; MAX_REQUEST_PAYLOAD + 1])).await;
    // A message that does not decode, and one with a trailing byte.
    ends(&rig, &[6, 0, 0, 0, 4, 0, 1, 99, 0, 0]).await;
    let mut longer = frame(9, &COMMIT, &[]);
    longer.push(0);
    longer[0] += 1;
    longer[4] += 1;
    ends(&rig, &longer).await;
    // An answer wanted where there is none, none wanted where there is one, and a number in use.
    ends(&rig, &frame(7, &write, &block(1))).await;
    ends(&rig, &frame(0, &COMMIT, &[])).await;
    ends(&rig, &frame(7, &BEGIN, &[])).await;
}

#[tokio::test]
async fn a_hello_of_another_kind_is_refused_on_both_sides() {
    let rig = Rig::new();
    let mut other = protocol::HELLO.encode();
    other[8..].copy_from_slice(&(protocol::HELLO.version + 1).to_le_bytes());
    for hello in [*b"GET / HTTP/1", other] {
        let mut stream = socket::connect(rig.folder.path(), SOCKET).await.unwrap().unwrap();
        stream.write_all(&hello).await.unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).await.unwrap();
        assert_eq!(said, protocol::HELLO.encode());
        let (near, mut far) = tokio::net::UnixStream::pair().unwrap();
        far.write_all(&hello).await.unwrap();
        let refused = Connection::over(&rig.env, near).await;
        assert!(matches!(refused, Err(TxnError::Disconnected(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn who_says_nothing_is_not_waited_for() {
    let config = Config { patience: Duration::from_millis(50), ..Config::default() };
    let rig = Rig::with(Options::default(), config);
    let mut stream = socket::connect(rig.folder.path(), SOCKET).await.unwrap().unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, protocol::HELLO.encode());
}

#[tokio::test]
async fn connections_have_a_bound() {
    let config = Config { max_connections: 2, ..Config::default() };
    let rig = Rig::with(Options::default(), config);
    let first = rig.connect().await;
    let second = rig.connect().await;
    let third = Connection::open(&rig.env, rig.folder.path()).await;
    assert!(matches!(third, Err(TxnError::Disconnected(_))));
    drop(first);
    second.begin(Begin::STRICT).await.unwrap();
    for _ in 0..1000 {
        if Connection::open(&rig.env, rig.folder.path()).await.is_ok() {
            return;
        }
        rig.env.sleep(Duration::from_millis(5)).await;
    }
    panic!("the seat of a connection that has ended stays taken");
}

#[tokio::test]
async fn what_a_write_failed_with_is_the_answer_to_the_commit() {
    let options = Options { max_writes: 2, ..Options::default() };
    let rig = Rig::with(options, Config::default());
    let failing = [
        (Request::Write { txn: 1, lba: BLOCKS, class: Class::Data }, block(1)),
        (Request::Write { txn: 1, lba: 3, class: Class::Data }, block(1).slice(..512)),
        (Request::Write { txn: 1, lba: 3, class: Class::Data }, block(1)),
        (Request::Discard { txn: 1, lba: u64::MAX }, block(1).slice(..0)),
        (Request::Mark { txn: 1, lba: 1, start: 0, end: 5000 }, block(1).slice(..0)),
        (Request::Mark { txn: 1, lba: 1, start: 9, end: 2 }, block(1).slice(..0)),
        (Request::Mark { txn: 1, lba: 30, start: 0, end: 2 }, block(1).slice(..0)),
    ];
    for (request, payload) in failing {
        let mut raw = rig.raw().await;
        raw.send(1, &BEGIN, &[]).await;
        for lba in 1..3 {
            raw.send(0, &Request::Write { txn: 1, lba, class: Class::Data }, &block(1)).await;
        }
        raw.send(0, &request, &payload).await;
        raw.send(0, &Request::Write { txn: 1, lba: 2, class: Class::Data }, &block(2)).await;
        raw.send(2, &Request::Read { txn: 1, lba: 0, count: 1 }, &[]).await;
        raw.send(3, &COMMIT, &[]).await;
        assert!(matches!(raw.answer().await, Some((1, Answer::Begun { .. }))));
        assert!(matches!(raw.answer().await, Some((2, Answer::Failed(_)))), "{request:?}");
        assert!(matches!(raw.answer().await, Some((3, Answer::Failed(_)))), "{request:?}");
        assert_eq!((rig.stored(1).await, rig.stored(2).await), (0, 0), "{request:?}");
        rig.wait_for_running(0).await;
    }
}

#[tokio::test]
async fn requests_for_what_does_not_run_are_refused() {
    let rig = Rig::new();
    let mut raw = rig.raw().await;
    raw.send(0, &Request::Write { txn: 1, lba: 5, class: Class::Data }, &block(5)).await;
    let refused = [
        Request::Read { txn: 1, lba: 0, count: 1 },
        COMMIT,
        Request::Release { txn: 1 },
        Request::Takeover { txn: 1, handle: Handle(3) },
        Request::Read { txn: 1, lba: 0, count: u64::MAX },
    ];
    for (id, request) in (1..).zip(&refused) {
        raw.send(id, request, &[]).await;
        let answer = raw.answer().await.unwrap();
        assert!(matches!(answer, (it, Answer::Failed(_)) if it == id), "{request:?}: {answer:?}");
    }
    raw.send(9, &Request::Abort { txn: 1 }, &[]).await;
    assert_eq!(raw.answer().await, Some((9, Answer::Done)));
    // After a commit, and after an abort.
    for (id, end, ended) in [
        (20, COMMIT, Answer::At(EpochVersion::default())),
        (30, Request::Abort { txn: 1 }, Answer::Done),
    ] {
        raw.send(id, &BEGIN, &[]).await;
        raw.send(id + 1, &end, &[]).await;
        raw.send(id + 2, &COMMIT, &[]).await;
        assert!(matches!(raw.answer().await, Some((_, Answer::Begun { .. }))));
        let (number, answer) = raw.answer().await.unwrap();
        assert_eq!(number, id + 1);
        assert_eq!(std::mem::discriminant(&answer), std::mem::discriminant(&ended));
        assert!(matches!(raw.answer().await, Some((_, Answer::Failed(_)))));
    }
}

/// A client that does not read its answers costs bounded memory, and delays no other client.
#[tokio::test]
async fn who_does_not_read_is_not_read_from() {
    let config = Config { unread: 1 << 20, ..Config::default() };
    let rig = Rig::with(Options::default(), config);
    let mut raw = rig.raw().await;
    raw.send(1, &BEGIN, &[]).await;
    let read = frame(2, &Request::Read { txn: 1, lba: 0, count: 256 }, &[]);
    let sent = rig
        .env
        .timeout(Duration::from_millis(500), async {
            loop {
                raw.stream.write_all(&read).await.unwrap();
            }
        })
        .await;
    assert_eq!(sent, None, "the server read on and on");
    rig.connect().await.begin(Begin::STRICT).await.unwrap().read(Lba(0)).await.unwrap();
    drop(raw);
    rig.wait_for_running(0).await;
}

/// A client fails cleanly when the server sends invalid answers.
#[tokio::test]
async fn a_server_that_answers_nonsense_is_left() {
    let env = Env::real();
    let mut answers: Vec<Vec<u8>> = vec![vec![0xff; 32]];
    for (id, answer, payload) in
        [(77, Answer::Done, 0), (1, Answer::Done, 0), (1, Answer::Blocks, BLOCK_SIZE)]
    {
        let mut frame = BytesMut::new();
        protocol::encode(id, &answer, payload, &mut frame).unwrap();
        frame.extend_from_slice(&vec![0; payload]);
        answers.push(frame.to_vec());
    }
    for answer in answers {
        let (near, mut far) = tokio::net::UnixStream::pair().unwrap();
        let mut welcome = BytesMut::from(&protocol::HELLO.encode()[..]);
        let ready = protocol::Welcome::Ready { blocks: 9, max_writes: 9 };
        protocol::encode(0, &ready, 0, &mut welcome).unwrap();
        far.write_all(&welcome).await.unwrap();
        let volume = Connection::over(&env, near).await.unwrap();
        let begin = volume.begin(Begin::STRICT);
        let (begun, written) = tokio::join!(begin, far.write_all(&answer));
        written.unwrap();
        assert!(matches!(begun, Err(TxnError::Disconnected(_))), "{begun:?}");
    }
}

fn requests() -> impl Strategy<Value = (u64, Request, Vec<u8>)> {
    let number = || prop_oneof![0..4u64, any::<u64>()];
    let request = prop_oneof![
        number().prop_map(|txn| Request::Begin { txn, begin: Begin::SNAPSHOT }),
        (number(), any::<u128>())
            .prop_map(|(txn, handle)| Request::Takeover { txn, handle: Handle(handle) }),
        (number(), number(), number()).prop_map(|(txn, lba, count)| Request::Read {
            txn,
            lba,
            count
        }),
        (number(), number()).prop_map(|(txn, lba)| Request::Write { txn, lba, class: Class::Data }),
        (number(), number(), any::<u16>(), any::<u16>())
            .prop_map(|(txn, lba, start, end)| Request::Mark { txn, lba, start, end }),
        number().prop_map(|txn| Request::Commit { txn, durability: Durability::Visible }),
        number().prop_map(|txn| Request::Release { txn }),
    ];
    (number(), request, prop::collection::vec(any::<u8>(), 0..200))
}

/// A frame with this message, which need not be valid.
fn framed(message: &[u8]) -> BytesMut {
    let mut frame = BytesMut::new();
    // The length of the frame after itself, and that of the number and the message; the number is 1.
    frame.extend_from_slice(&(message.len() as u32 + 3).to_le_bytes());
    frame.extend_from_slice(&(message.len() as u16 + 1).to_le_bytes());
    frame.extend_from_slice(&[1]);
    frame.extend_from_slice(message);
    frame
}

// How frames are cut and refused is tested in `thalweg_net`; here, their messages are.
proptest! {
    #[test]
    fn requests_decode_to_themselves((id, request, payload) in requests()) {
        let mut input = BytesMut::from(&frame(id, &request, &payload)[..]);
        let found = protocol::decode::<Request>(&mut input, 4096).unwrap().unwrap();
        prop_assert_eq!((found.id, found.message, &found.payload[..]), (id, request, &payload[..]));
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(
        kind in 0..20u8,
        mut message in prop::collection::vec(any::<u8>(), 1..100),
    ) {
        message[0] = kind;
        let request = protocol::decode::<Request>(&mut framed(&message), 0).map(|it| it.is_some());
        let answer = protocol::decode::<Answer>(&mut framed(&message), 0).map(|it| it.is_some());
        // The frame itself is valid.
        for decoded in [request, answer] {
            prop_assert!(matches!(decoded, Ok(true) | Err(FrameError::Message)), "{decoded:?}");
        }
    }
}
