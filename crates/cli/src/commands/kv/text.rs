//! Keys and values as text: in JSON, in hexadecimal digits, for a terminal.

use serde_json::{Value, json};

use crate::failure::{Failure, Outcome};

/// A line of an export: key and value.
pub(super) fn pair(line: &str) -> Outcome<(Vec<u8>, Vec<u8>)> {
    let pair: Value = serde_json::from_str(line)?;
    Ok((field(&pair, "key")?, field(&pair, "value")?))
}

/// A field as [`text`] writes it.
fn field(pair: &Value, name: &str) -> Outcome<Vec<u8>> {
    let wrong = || {
        Failure::new(format!("it has no \"{name}\" that is a string or {{\"hex\": \"…\"}}"))
            .help("import takes what export prints")
    };
    match &pair[name] {
        Value::String(text) => Ok(text.clone().into_bytes()),
        Value::Object(object) => {
            let digits = object.get("hex").and_then(Value::as_str).ok_or_else(wrong)?;
            bytes(digits, true)
        }
        _ => Err(wrong()),
    }
}

/// Bytes as JSON.
pub(super) fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({"hex": digits})
        }
    }
}

/// Bytes as one printable line.
pub(super) fn plain(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|c| c.is_control() || c == '\\') => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// The bytes that an argument means.
pub(super) fn bytes(text: &str, hex: bool) -> Outcome<Vec<u8>> {
    if !hex {
        return Ok(text.as_bytes().to_vec());
    }
    let wrong = || Failure::new(format!("{text:?} is not written in pairs of hexadecimal digits"));
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let digits = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16));
    digits.collect::<Result<_, _>>().map_err(|_| wrong())
}

/// The first key above all keys with this prefix.
pub(super) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_json() {
        for sample in [&b""[..], b"plain", b"\x00\xff", "gr\u{fc}n".as_bytes()] {
            let pair = json!({"key": text(sample)});
            assert_eq!(field(&pair, "key").unwrap(), sample);
        }
        for wrong in [json!({}), json!({"key": 1}), json!({"key": {"hex": "0"}})] {
            assert!(field(&wrong, "key").is_err());
        }
        assert_eq!(bytes("00fF", true).unwrap(), [0, 255]);
        assert!(bytes("+1", true).is_err());
    }

    #[test]
    fn a_prefix_has_an_end() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }
}
