"""METHODS: every method of the laboratory, name → constructor, the whole list at a glance."""

from forgetfree.methods.wsn import WSN

METHODS = {
    "wsn": WSN,
}
