use std::path::PathBuf;

/// Why the workspace could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum TidyError {
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// A Rust source has a syntax error.
    #[error("{path}: line {line}: {message}")]
    Rust {
        /// The file, relative to the workspace.
        path: String,
        /// The line of the error, counted from 1.
        line: usize,
        /// What the parser expected.
        message: String,
    },
    /// A TOML file has a syntax error.
    #[error("{path}: {source}")]
    Toml {
        /// The file, relative to the workspace.
        path: String,
        /// What the parser expected.
        source: Box<toml::de::Error>,
    },
    /// A field of a TOML file is missing or has the wrong type.
    #[error("{path}: {field} is missing or is not {expected}")]
    Field {
        /// The file, relative to the workspace.
        path: String,
        /// The field.
        field: String,
        /// Its type.
        expected: &'static str,
    },
    /// The file of a module does not exist.
    #[error("{path}: the file of `mod {module}` is missing")]
    Module {
        /// The file that declares the module.
        path: String,
        /// The module.
        module: String,
    },
}
