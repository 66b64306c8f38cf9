use super::Reader;
use crate::corpus::error::CorpusError;
use crate::corpus::format::Bytes;
use crate::corpus::source::Source;

/// Says that this build reads none.
pub(super) fn open(
    source: &Source,
    _: Box<dyn Bytes>,
    _: usize,
) -> Result<Box<dyn Reader>, CorpusError> {
    Err(CorpusError::NoParquet {
        name: source.name.clone(),
    })
}
