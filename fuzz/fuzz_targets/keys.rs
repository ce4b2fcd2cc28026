//! Messages at the entrance of a server, and the texts of keys, clients, tokens and addresses. A text that is accepted comes
//! back from its own text.
#![no_main]

use std::fmt::Display;
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;
use thalweg_ipc::Remote;
use thalweg_ipc::remote::Server;
use thalweg_net::entry::{Verdict, Wish};
use thalweg_net::frame::message_of;
use thalweg_net::keys::{Client, Key, Offer, PublicKey, Token};

fn check<T: FromStr + Display>(text: &str) {
    if let Ok(read) = text.parse::<T>() {
        let written = read.to_string();
        let again = written.parse::<T>().ok().map(|again| again.to_string());
        assert_eq!(again, Some(written));
    }
}

fuzz_target!(|data: &[u8]| {
    let _ = message_of::<Wish>(data);
    let _ = message_of::<Verdict>(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    check::<PublicKey>(text);
    check::<Client>(text);
    check::<Token>(text);
    check::<Offer>(text);
    check::<Server>(text);
    if let Some(Ok(remote)) = Remote::of(text) {
        assert_eq!(Remote::of(&remote.to_string()).and_then(Result::ok), Some(remote));
    }
    let _ = Key::from_pem(text);
});
