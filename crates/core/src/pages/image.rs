//! A page's image, shared by all who read it.

use std::ops::Deref;
use std::sync::Arc;

use crate::base::error::Result;
use crate::base::memory::{self, PageBytes};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image(Arc<PageBytes>);

impl Image {
    pub fn copy(bytes: &[u8]) -> Result<Image> {
        Ok(memory::copy(bytes)?.into())
    }

    /// `None`: it has other readers.
    pub fn unshared(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.0).map(|bytes| &mut *bytes.0)
    }
}

impl From<Vec<u8>> for Image {
    fn from(bytes: Vec<u8>) -> Image {
        Image(Arc::new(PageBytes(bytes)))
    }
}

impl Deref for Image {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.0
    }
}
