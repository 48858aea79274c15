"""The command line: `radixlang run | explain | tree | bench | doctor | prefix`."""
