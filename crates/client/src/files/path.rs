//! Paths: which inode they lead to, by the rules of POSIX and Linux (path_resolution(7)).
//!
//! All paths begin at the root, as do the absolute targets of symbolic links. A path with slashes behind it has to
//! lead to a directory.

use std::collections::VecDeque;

use bytes::Bytes;
use thalweg_fs::access::SEARCH;
use thalweg_fs::{Attributes, FsError, Ino, Kind};

use super::access::UserView;
use super::error::{FileError, invalid};

/// Longest path in bytes.
const MAX_PATH: usize = 4095;
/// Symbolic links that one path may lead over.
const MAX_LINKS: usize = 40;

/// The last component of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Last {
    /// There is none: the path is that of the root.
    Root,
    Dot,
    DotDot,
    Name(Bytes),
}

impl Last {
    fn of(component: Bytes) -> Last {
        match &*component {
            b"." => Last::Dot,
            b".." => Last::DotDot,
            _ => Last::Name(component),
        }
    }
}

/// The end of a path that was not looked up yet.
pub(super) struct End {
    pub(super) last: Last,
    /// Slashes follow.
    pub(super) slash: bool,
}

/// Goes along a path.
pub(super) struct Walk<'a> {
    view: UserView<'a>,
    /// The directories from the root to the current one.
    pub(super) chain: Vec<Attributes>,
    links: usize,
}

impl<'a> Walk<'a> {
    /// Goes to the directory with the last component of a path.
    pub(super) async fn along(
        view: UserView<'a>,
        path: &[u8],
    ) -> Result<(Walk<'a>, End), FileError> {
        let root = view.files.attributes(Ino::ROOT).await?.attributes;
        let mut walk = Walk { view, chain: vec![root], links: 0 };
        let end = walk.advance(path).await?;
        Ok((walk, end))
    }

    /// The current directory.
    pub(super) fn current(&self) -> Attributes {
        self.chain[self.chain.len() - 1]
    }

    /// The components of a path; an absolute one goes back to the root first.
    fn begin(&mut self, path: &[u8]) -> Result<VecDeque<Bytes>, FileError> {
        if path.is_empty() {
            return Err(FsError::NotFound.into());
        }
        if path.len() > MAX_PATH {
            return Err(FsError::NameTooLong.into());
        }
        if path.contains(&0) {
            return Err(invalid("the path contains a zero byte"));
        }
        if path[0] == b'/' {
            self.chain.truncate(1);
        }
        let components = path.split(|byte| *byte == b'/').filter(|it| !it.is_empty());
        Ok(components.map(Bytes::copy_from_slice).collect())
    }

    /// Goes along a path, from here, up to its last component.
    async fn advance(&mut self, path: &[u8]) -> Result<End, FileError> {
        let mut left = self.begin(path)?;
        let slash = path.ends_with(b"/");
        loop {
            let Some(next) = left.pop_front() else { return Ok(End { last: Last::Root, slash }) };
            self.view.check(&self.current(), SEARCH).await?;
            let next = Last::of(next);
            if left.is_empty() {
                return Ok(End { last: next, slash });
            }
            match next {
                Last::Root | Last::Dot => {}
                Last::DotDot => self.up(),
                Last::Name(name) => {
                    let found = self.view.files.find(self.current().ino, &name).await?.attributes;
                    match found.kind {
                        Kind::Directory => self.chain.push(found),
                        Kind::Symlink => {
                            let target = self.target(&found).await?;
                            let mut further = self.begin(&target)?;
                            further.append(&mut left);
                            left = further;
                        }
                        _ => return Err(FsError::NotDirectory.into()),
                    }
                }
            }
        }
    }

    fn up(&mut self) {
        if self.chain.len() > 1 {
            self.chain.pop();
        }
    }

    /// Goes to the directory that a last component without a name leads to.
    pub(super) fn enter(&mut self, last: &Last) -> Attributes {
        if *last == Last::DotDot {
            self.up();
        }
        self.current()
    }

    async fn target(&mut self, link: &Attributes) -> Result<Bytes, FileError> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(FileError::Links);
        }
        Ok(self.view.files.read_link(link.ino).await?)
    }

    /// Follows the symbolic link at a path's end up to the last component of its target.
    pub(super) async fn follow(&mut self, link: &Attributes, end: End) -> Result<End, FileError> {
        let target = self.target(link).await?;
        let further = self.advance(&target).await?;
        Ok(End { slash: further.slash || end.slash, ..further })
    }
}

impl UserView<'_> {
    /// The inode that a path leads to. A symbolic link at its end is followed if `follow`, or if slashes are behind it.
    pub(super) async fn resolve(&self, path: &[u8], follow: bool) -> Result<Attributes, FileError> {
        let (mut walk, mut end) = Walk::along(*self, path).await?;
        loop {
            let Last::Name(name) = &end.last else { return Ok(walk.enter(&end.last)) };
            let found = self.files.find(walk.current().ino, name).await?.attributes;
            if found.kind == Kind::Symlink && (follow || end.slash) {
                end = walk.follow(&found, end).await?;
            } else if end.slash && found.kind != Kind::Directory {
                return Err(FsError::NotDirectory.into());
            } else {
                return Ok(found);
            }
        }
    }
}
