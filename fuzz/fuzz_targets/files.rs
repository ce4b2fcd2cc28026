//! Between a server of files and a client: calls, answers and invalidations. A message that is accepted is decoded again
//! from what it encodes to; an error keeps its kind when it is encoded again.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thalweg_cluster::failure::WireError;
use thalweg_cluster::protocol::{
    Answer, Call, FromServer, MAX_ENTRIES, MAX_FORGOTTEN, Reply, decode_entries, decode_list,
};
use thalweg_fs::{FsError, Ino};
use thalweg_net::frame::message_of;

fn decode<T: Serialize + DeserializeOwned + PartialEq + Debug>(data: &[u8]) -> Option<T> {
    let message = message_of::<T>(data).ok()?;
    let encoded = postcard::to_allocvec(&message).unwrap_or_default();
    assert_eq!(message_of::<T>(&encoded).ok().as_ref(), Some(&message));
    Some(message)
}

fuzz_target!(|data: &[u8]| {
    if let Some(call) = decode::<Call>(data) {
        let _ = call.request.footprint(0).is_once();
    }
    if let Some(Reply { answer: Answer::Failed(error), .. }) = decode::<Reply>(data) {
        let again = WireError::from(FsError::from(error.clone()));
        match error {
            WireError::Invalid(_) | WireError::Failed(..) | WireError::Damaged(_) => {}
            error => assert_eq!(again, error),
        }
    }
    if let Some(FromServer::Invalidate { changes, .. }) = decode::<FromServer>(data) {
        for change in changes {
            let _ = change.ino();
        }
    }
    if let Ok(entries) = decode_entries(data) {
        assert!(entries.len() <= MAX_ENTRIES);
    }
    decode_list::<(Ino, u64)>(data, MAX_FORGOTTEN).ok();
});
