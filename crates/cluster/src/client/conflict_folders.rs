//! The folders of conflict sets at the server, which a client makes for itself: its users may write in them, or not, and may have no right to the
//! directory in which these lie (`server::conflict_files`).
//!
//! The session of the journal makes them: its calls recall nothing from itself.

use bytes::Bytes;
use thalweg_fs::{Attributes, Credentials, FsError, Ino, NewNode, Node};

use super::error::{expect_answer, unexpected};
use super::stages::Stages;
use crate::conflicts::{DIRECTORY, FOLDER_MODE, user_folder};
use crate::protocol::{Answer, Request};

pub(super) struct ConflictFolders<'a> {
    pub(super) stages: &'a Stages,
}

impl ConflictFolders<'_> {
    pub(super) async fn call(
        &self,
        request: Request,
        payload: Vec<Bytes>,
    ) -> Result<(Answer, Bytes), FsError> {
        let (reply, payload) = self.stages.rpc.call(request, payload, |_, _| {}).await?;
        Ok((reply.answer, payload))
    }

    pub(super) async fn lookup(
        &self,
        parent: Ino,
        name: Bytes,
    ) -> Result<Option<Attributes>, FsError> {
        match self.call(Request::Lookup { parent, name }, Vec::new()).await {
            Ok((Answer::Inode(found), _)) => Ok(Some(found)),
            Ok((Answer::Absent, _)) | Err(FsError::NotFound) => Ok(None),
            Ok(_) => unexpected(),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn make(
        &self,
        parent: Ino,
        name: Bytes,
        new: NewNode,
    ) -> Result<Ino, FsError> {
        let (answer, _) = self.call(Request::Create { parent, name, new }, Vec::new()).await?;
        expect_answer!(answer, Answer::Inode(made) => made.ino)
    }

    fn root(&self) -> Ino {
        self.stages.base.session.theirs(Ino::ROOT)
    }

    /// The folder of the sets, if it is there.
    pub(super) async fn folder(&self) -> Result<Option<Ino>, FsError> {
        Ok(self.lookup(self.root(), DIRECTORY.into()).await?.map(|found| found.ino))
    }

    /// The same; it is made if it is not there.
    pub(super) async fn make_folder(&self) -> Result<Ino, FsError> {
        let new = NewNode { node: Node::Directory, mode: FOLDER_MODE, umask: 0, uid: 0, gid: 0 };
        self.find_or_make(self.root(), DIRECTORY.into(), new).await
    }

    /// The folder of a user there, which is made if it is not there.
    pub(super) async fn make_user_folder(&self, user: &Credentials) -> Result<(), FsError> {
        let folder = self.make_folder().await?;
        let (uid, gid) = (user.uid, user.gid);
        let new = NewNode { node: Node::Directory, mode: 0o700, umask: 0, uid, gid };
        self.find_or_make(folder, user_folder(uid).into(), new).await.map(drop)
    }

    async fn find_or_make(&self, parent: Ino, name: Bytes, new: NewNode) -> Result<Ino, FsError> {
        if let Some(found) = self.lookup(parent, name.clone()).await? {
            return Ok(found.ino);
        }
        match self.make(parent, name.clone(), new).await {
            // A restarted server may have made it already: the first answer was lost.
            Err(FsError::Exists) => {
                self.lookup(parent, name).await?.map(|it| it.ino).ok_or(FsError::NotFound)
            }
            made => made,
        }
    }
}
