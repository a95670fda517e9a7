//! Files made byte by byte, so that every field can be wrong.

use std::path::PathBuf;

use crate::gguf::scratch;

/// The fields of a file. `Raw::default()` is a valid one with two tensors of eight floats.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) n_tensors: Option<u64>,
    pub(crate) n_pairs: Option<u64>,
    pub(crate) pairs: Vec<Vec<u8>>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) alignment: usize,
    pub(crate) data: Vec<u8>,
}

#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: Vec<u8>,
    pub(crate) n_dims: Option<u32>,
    pub(crate) dims: Vec<u64>,
    pub(crate) ty: u32,
    pub(crate) offset: u64,
}

/// The ids of the value types.
pub(crate) const U32: u32 = 4;
pub(crate) const BOOL: u32 = 7;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;
pub(crate) const U64: u32 = 10;

impl Default for Raw {
    fn default() -> Self {
        let tensor = |name: &str, offset| Tensor {
            name: name.into(),
            n_dims: None,
            dims: vec![8],
            ty: 0,
            offset,
        };
        Self {
            magic: *b"GGUF",
            version: 3,
            n_tensors: None,
            n_pairs: None,
            pairs: vec![pair(b"general.architecture", STRING, &string(b"test"))],
            tensors: vec![tensor("first", 0), tensor("second", 32)],
            alignment: 32,
            data: vec![7; 64],
        }
    }
}

impl Raw {
    /// The default file with one more pair.
    pub(crate) fn with_pair(key: &[u8], ty: u32, value: &[u8]) -> Self {
        let mut file = Self::default();
        file.pairs.push(pair(key, ty, value));
        file
    }

    /// The default file with another second tensor.
    pub(crate) fn with_tensor(change: impl FnOnce(&mut Tensor)) -> Self {
        let mut file = Self::default();
        change(&mut file.tensors[1]);
        file
    }

    /// The content of the file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_pairs.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        out.extend(self.pairs.concat());
        for tensor in &self.tensors {
            out.extend(string(&tensor.name));
            out.extend(tensor.n_dims.unwrap_or(tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }

    /// Writes the file for one test and returns its path.
    pub(crate) fn write(&self, test: &str) -> PathBuf {
        let path = scratch(test).join("model.gguf");
        std::fs::write(&path, self.bytes()).unwrap();
        path
    }
}

/// A metadata pair.
pub(crate) fn pair(key: &[u8], ty: u32, value: &[u8]) -> Vec<u8> {
    [string(key), ty.to_le_bytes().to_vec(), value.to_vec()].concat()
}

/// A string with its length.
pub(crate) fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// The head of an array: element type and count.
pub(crate) fn array(ty: u32, count: u64) -> Vec<u8> {
    [ty.to_le_bytes().to_vec(), count.to_le_bytes().to_vec()].concat()
}
