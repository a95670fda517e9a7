//! One file per op: validate, choose the variant and workgroups, record.
