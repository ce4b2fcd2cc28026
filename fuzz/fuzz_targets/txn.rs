//! Everything that a peer on the socket for transactions sends.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use thalweg_ipc::protocol::{
    Answer, HELLO, MAX_ANSWER_PAYLOAD, MAX_REQUEST_PAYLOAD, Request, Welcome, decode, encode,
};

fuzz_target!(|data: &[u8]| {
    if let Some(hello) = data.first_chunk() {
        HELLO.check(hello).ok();
    }
    let mut input = BytesMut::from(data);
    while let Ok(Some(frame)) = decode::<Request>(&mut input, MAX_REQUEST_PAYLOAD) {
        // What was understood is what would be sent.
        let mut again = BytesMut::new();
        encode(frame.id, &frame.message, frame.payload.len(), &mut again).expect("it has come in a frame");
        again.extend_from_slice(&frame.payload);
        let found = decode::<Request>(&mut again, MAX_REQUEST_PAYLOAD);
        assert_eq!(found.ok().flatten(), Some(frame));
    }
    let mut input = BytesMut::from(data);
    while let Ok(Some(_)) = decode::<Answer>(&mut input, MAX_ANSWER_PAYLOAD) {}
    decode::<Welcome>(&mut BytesMut::from(data), 0).ok();
});
