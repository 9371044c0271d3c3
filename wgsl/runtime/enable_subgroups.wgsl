// Tint wants this line before subgroup operations; naga refuses it.
enable subgroups;
