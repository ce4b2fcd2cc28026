//! How a status says that something needs attention.

use serde_json::Value;

use crate::attention::EXIT_CODE;

/// The exit code of a status with this JSON.
pub(crate) fn exit_code(status: &Value) -> u8 {
    match status["degraded"].as_array().is_none_or(Vec::is_empty) {
        true => 0,
        false => EXIT_CODE,
    }
}

/// The first lines of a status that needs attention.
pub(crate) fn degraded_lines(degraded: &[String]) -> String {
    degraded.iter().map(|what| format!("DEGRADED: {what}\n")).collect()
}

/// Prints on standard error why a volume is degraded.
pub(crate) fn warn(name: &str, degraded: &Value) {
    for what in degraded.as_array().into_iter().flatten().filter_map(Value::as_str) {
        eprintln!("warning: {name} is degraded: {what}");
    }
}
