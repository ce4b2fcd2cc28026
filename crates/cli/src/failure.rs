//! Errors as the user sees them: what failed, and what to do next.

mod causes;

pub(crate) use causes::{explain_journal, explain_pair};

use std::error::Error;
use std::fmt;

use miette::{Diagnostic, MietteHandlerOpts, Report};
use serde::{Deserialize, Serialize};
use textwrap::{WordSeparator, WordSplitter};

/// An error as the user sees it. It is text only, so that it can be sent over control sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    message: String,
    help: Option<String>,
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), help: None }
    }

    /// An error with all its causes, each once.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Failure {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            let text = source.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = source.source();
        }
        Failure::new(message)
    }

    /// Prepends what was attempted.
    pub(crate) fn while_doing(mut self, what: impl fmt::Display) -> Failure {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Adds what to do next, unless the error has a help already.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Failure {
        self.help.get_or_insert(help.into());
        self
    }

    /// Prints it to the standard error stream. Paths and the like are not broken, so that they can be copied.
    pub(crate) fn print(self) {
        // This fails if there is a hook already.
        let _ = miette::set_hook(Box::new(|_| {
            let options = MietteHandlerOpts::new().break_words(false);
            let options = options.word_separator(WordSeparator::AsciiSpace);
            Box::new(options.word_splitter(WordSplitter::NoHyphenation).build())
        }));
        eprintln!("{:?}", Report::new(self));
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {}

impl Diagnostic for Failure {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }
}
