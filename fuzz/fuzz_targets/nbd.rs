//! Everything that an NBD client sends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_nbd::protocol::{
    ContextRequest, ExportRequest, OptionHeader, Request, decode_client_flags, decode_name,
};

fuzz_target!(|data: &[u8]| {
    decode_name(data).ok();
    ExportRequest::decode(data).ok();
    ContextRequest::decode(data).ok();
    if let Some(bytes) = data.first_chunk() {
        decode_client_flags(*bytes).ok();
    }
    if let Some(bytes) = data.first_chunk() {
        OptionHeader::decode(bytes).ok();
    }
    if let Some(Ok(request)) = data.first_chunk().map(Request::decode) {
        request.payload_len();
        request.end();
    }
});
