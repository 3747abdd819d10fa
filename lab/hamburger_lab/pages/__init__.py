"""Result files to the tables and figures of the documents."""
